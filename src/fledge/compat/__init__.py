"""Names and call signatures of other projects (NavRL, midrangeRL, TorchRL), as thin wrappers of Fledge's other packages."""
