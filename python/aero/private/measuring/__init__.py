"""What private runs send and take, next to what the simulator predicts."""
