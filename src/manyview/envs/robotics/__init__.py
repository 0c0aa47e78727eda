"""Gymnasium-Robotics: the arm of Fetch and the hand of Adroit, with sparse and dense rewards."""
