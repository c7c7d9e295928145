"""Parts of the endpoint picker in fake surroundings, shared by the tests and the programs."""
