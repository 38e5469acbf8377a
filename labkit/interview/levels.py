"""Whom a card or a drill is for, by its difficulty."""

LEVELS = {1: "everyone", 2: "senior", 3: "expert"}
