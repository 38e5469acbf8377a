"""How ranks on several hosts find each other."""
