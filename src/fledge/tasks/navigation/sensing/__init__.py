"""What a drone senses: ray casting and the observation kernel."""

from fledge.core.warp_start import start_warp

start_warp()
