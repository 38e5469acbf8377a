"""What this machine gives a run, and what to do where that is too little."""
