package main

import "sync"

// Stats is what the engine has seen since its start, as GET /standin/stats shows it.
type Stats struct {
	Calls         map[string]int `json:"calls"`          // inference calls begun, by route name
	Inputs        int            `json:"inputs"`         // inputs of all embedding calls
	BatchSizes    map[int]int    `json:"batch_sizes"`    // embedding calls by number of inputs
	MaxTokens     int            `json:"max_tokens"`     // most input tokens in one call
	InFlight      int            `json:"in_flight"`      // inference calls not yet ended
	MaxConcurrent int            `json:"max_concurrent"` // most of them at once
	Canceled      int            `json:"cancelled"`      // calls whose client left before the end
}

// counters guards a Stats. Its zero value is not usable; see newCounters.
type counters struct {
	mu sync.Mutex
	st Stats
}

func newCounters() *counters {
	return &counters{st: Stats{Calls: map[string]int{}, BatchSizes: map[int]int{}}}
}

// begin counts a call in and returns its number, from 1.
func (c *counters) begin(route string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.st.Calls[route]++
	c.st.InFlight++
	c.st.MaxConcurrent = max(c.st.MaxConcurrent, c.st.InFlight)
	n := 0
	for _, k := range c.st.Calls {
		n += k
	}
	return n
}

// end counts a call out.
func (c *counters) end(canceled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.st.InFlight--
	if canceled {
		c.st.Canceled++
	}
}

// tokens notes the input tokens of one call.
func (c *counters) tokens(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.st.MaxTokens = max(c.st.MaxTokens, n)
}

// batch notes the inputs of one embedding call.
func (c *counters) batch(inputs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.st.Inputs += inputs
	c.st.BatchSizes[inputs]++
}

// snapshot returns a copy that later calls do not change.
func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.st
	st.Calls, st.BatchSizes = map[string]int{}, map[int]int{}
	for k, v := range c.st.Calls {
		st.Calls[k] = v
	}
	for k, v := range c.st.BatchSizes {
		st.BatchSizes[k] = v
	}
	return st
}
