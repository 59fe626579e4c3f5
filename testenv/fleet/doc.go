// Package fleet measures what the pool's state costs as hosts are added: the runners' own host code with engines that start
// at once, and gateways' mirrors and gates, all in one process over a real redis-server. `make fleet` prints the table for
// HOSTS; as a test it asserts that the number of Redis commands does not grow with the pool.
package fleet
