// Package fleet measures what the pool's state costs as hosts are added: the runners' own host code with engines that start
// at once, and gateways' mirrors and gates, all in one process over a real redis-server, or with ARGS=-cluster a cluster of
// three nodes. `make fleet` prints the table for HOSTS and draws it; as a test it asserts that the number of Redis commands
// does not grow with the pool.
package fleet
