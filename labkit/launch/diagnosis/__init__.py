"""What the doctor knows: who waits for whom, where ranks stand, and which error that is."""
