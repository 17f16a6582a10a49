"""How jobs follow their pods, from placement to the end."""
