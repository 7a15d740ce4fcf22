"""What both parties compute together under SPU; all but `calls` needs the private environment."""
