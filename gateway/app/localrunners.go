package app

import (
	"sync"

	"reveille/gateway/httpapi"
)

// localRunners are the runners of this process by host. It is safe for concurrent use.
type localRunners struct{ byHost sync.Map }

// localRunner is a runner and the address that it has registered with.
type localRunner struct {
	addr   string
	runner httpapi.LocalRunner
}

// add makes a runner known until it ends.
func (n *localRunners) add(host, addr string, r httpapi.LocalRunner) {
	n.byHost.Store(host, localRunner{addr, r})
}

func (n *localRunners) remove(host string) { n.byHost.Delete(host) }

// at returns the runner of a host, nil unless it is in this process and the one at that address.
func (n *localRunners) at(host, addr string) httpapi.LocalRunner {
	if r, ok := n.byHost.Load(host); ok && r.(localRunner).addr == addr {
		return r.(localRunner).runner
	}
	return nil
}
