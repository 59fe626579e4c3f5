package app

import (
	"sync"

	"reveille/gateway/httpapi"
)

// nearby are the runners of this process by host. It is safe for concurrent use.
type nearby struct{ byHost sync.Map }

// nearRunner is a runner and the address that it has registered with.
type nearRunner struct {
	addr   string
	runner httpapi.LocalRunner
}

// add makes a runner known until it ends.
func (n *nearby) add(host, addr string, r httpapi.LocalRunner) {
	n.byHost.Store(host, nearRunner{addr, r})
}

func (n *nearby) remove(host string) { n.byHost.Delete(host) }

// at returns the runner of a host, nil unless it is in this process and the one at that address.
func (n *nearby) at(host, addr string) httpapi.LocalRunner {
	if r, ok := n.byHost.Load(host); ok && r.(nearRunner).addr == addr {
		return r.(nearRunner).runner
	}
	return nil
}
