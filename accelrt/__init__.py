"""accelrt: torch.cuda's runtime without torch."""
