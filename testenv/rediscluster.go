package testenv

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	clusterNodes = 3
	clusterSlots = 16384
	clusterStart = 60 * time.Second // longest until all nodes agree; a fresh one waits 2 s by itself
)

// RedisCluster is a running Redis Cluster that speaks TLS and nothing else, as a managed cache
// does: primaries without replicas, a third of the slots each. Kill and Restart must not be
// called at the same time.
type RedisCluster struct {
	Addrs     []string // host:port of each node
	Authority string   // PEM file; programs trust the nodes with SSL_CERT_FILE set to it

	nodes []*RedisServer
	certs certificates
}

// StartRedisCluster starts the nodes and returns when each says that the cluster is up. They
// are killed when the test ends.
func StartRedisCluster(t testing.TB) *RedisCluster {
	t.Helper()
	c := &RedisCluster{certs: newCertificates(t)}
	c.Authority = c.certs.authority
	buses := make([]int, clusterNodes)
	for i := range buses {
		node := startRedis(t, c.certs.clients, func() (args []string, err error) {
			buses[i], err = freePort()
			return []string{
				"--tls-cert-file", c.certs.server, "--tls-key-file", c.certs.key, "--tls-ca-cert-file", c.certs.authority,
				"--tls-auth-clients", "no", "--tls-cluster", "yes", "--tls-replication", "yes",
				"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(buses[i]), "--cluster-announce-ip", "127.0.0.1",
			}, err
		})
		c.nodes = append(c.nodes, node)
		c.Addrs = append(c.Addrs, node.Addr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterStart)
	defer cancel()
	if err := c.meet(ctx, buses); err != nil {
		t.Fatal("testenv: redis cluster:", err)
	}
	return c
}

// meet makes the nodes one cluster.
func (c *RedisCluster) meet(ctx context.Context, buses []int) error {
	clients := make([]*redis.Client, len(c.nodes))
	for i, n := range c.nodes {
		clients[i] = redis.NewClient(&redis.Options{Addr: n.Addr, TLSConfig: c.certs.clients})
		defer clients[i].Close()
		first, last := i*clusterSlots/len(c.nodes), (i+1)*clusterSlots/len(c.nodes)-1
		// Epochs of their own spare the nodes an election about them.
		if err := clients[i].Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if err := clients[i].ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
			return err
		}
	}
	for i, n := range c.nodes[1:] {
		host, port, _ := net.SplitHostPort(n.Addr)
		if err := clients[0].Do(ctx, "CLUSTER", "MEET", host, port, buses[i+1]).Err(); err != nil {
			return err
		}
	}
	up := []string{"cluster_state:ok", fmt.Sprintf("cluster_known_nodes:%d", len(c.nodes)), fmt.Sprintf("cluster_size:%d", len(c.nodes))}
	for _, client := range clients {
		for {
			info, err := client.ClusterInfo(ctx).Result()
			if err != nil {
				return fmt.Errorf("%w; last: %s", err, info)
			}
			if containsAll(info, up) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

func containsAll(text string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// URL names all nodes, in the form of --redis-url.
func (c *RedisCluster) URL() string { return "rediss://" + strings.Join(c.Addrs, ",") + "/0" }

// EndpointURL names one node and says that it is a Cluster, as a serverless cache's URL does.
func (c *RedisCluster) EndpointURL() string { return "rediss://" + c.Addrs[0] + "/0?cluster=true" }

// Client opens a client of the cluster for a test that looks. It is closed with the test.
func (c *RedisCluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := c.connect()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func (c *RedisCluster) connect() *redis.ClusterClient {
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs, TLSConfig: c.certs.clients})
}

// poolKeys lists the keys of all pools, on whatever node they are.
func poolKeys(ctx context.Context, c redis.UniversalClient) ([]string, error) {
	cluster, ok := c.(*redis.ClusterClient)
	if !ok {
		return c.Keys(ctx, "rv:*").Result()
	}
	var mu sync.Mutex
	var all []string
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		keys, err := node.Keys(ctx, "rv:*").Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, keys...)
		return err
	})
	return all, err
}

// Node opens a client of one node.
func (c *RedisCluster) Node(t testing.TB, i int) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: c.Addrs[i], TLSConfig: c.certs.clients, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Kill ends a node at once; the others go on, without its slots.
func (c *RedisCluster) Kill(i int) { c.nodes[i].Kill() }

// Restart starts a node again, empty but for its place in the cluster. It may take slots' writes only after 2 s.
func (c *RedisCluster) Restart(i int) { c.nodes[i].Restart() }
