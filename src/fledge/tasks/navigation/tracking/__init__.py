"""Movers from LiDAR scans and odometry alone: a memory of hits that tells static from moving, and tracks of what moves."""
