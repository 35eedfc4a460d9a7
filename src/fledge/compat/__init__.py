"""Names and call signatures of other projects (NavRL, midrangeRL, TorchRL), as thin wrappers of the other packages."""
