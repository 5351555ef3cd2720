"""What English sentence encoders are judged by."""
