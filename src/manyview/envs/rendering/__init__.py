"""Drawing of MuJoCo models without a screen."""
