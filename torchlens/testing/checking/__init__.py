"""What must hold, as checks that raise: of what is recorded (recorded.py), and of models (models.py, slopes.py)."""
