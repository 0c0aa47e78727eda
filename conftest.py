pytest_plugins = ["quality.plugin"]
