"""What is asked of measurements and predictions, and what they answer: records for JSON, and a printable table."""
