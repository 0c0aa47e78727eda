"""LeRobot datasets of version 3: Parquet, MP4 and JSON (extra `datasets`)."""
