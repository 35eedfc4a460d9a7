"""Networks that fly drones."""
