"""Sensors: the table of observations, ray casting and the observation kernels."""
