package policy

import (
	"slices"
	"testing"
)

// TestWantCopy is the decision table of further copies. A copy is OPEN requests, of which it completes SERVED within
// --fair-after and PARALLEL at a time.
func TestWantCopy(t *testing.T) {
	const id = "m"
	has := func(state ModelState) Host {
		return Host{State: Ready, Residents: []Resident{{ID: id, State: state}}}
	}
	var (
		free    = Host{State: Ready}
		asleep  = Host{State: Asleep}
		loaded  = has(ModelLoaded)
		loading = Host{State: Ready, Loading: id} // its runner has not recorded the model yet
		starts  = has(ModelLoading)
		stops   = has(ModelStopping)
		queued  = Host{State: Waking, Queue: []Ticket{{Model: Model{ID: id}}}}
		both    = Host{State: Ready, Loading: id, Residents: starts.Residents}
		reload  = Host{State: Ready, Queue: queued.Queue, Residents: loaded.Residents}
		lost    = Host{State: Lost, Queue: queued.Queue, Residents: loaded.Residents}
	)
	of := func(open, served, parallel int) CopyLoad { return CopyLoad{open, served, parallel} }
	for _, tc := range []struct {
		name   string
		max    int
		copies []CopyLoad
		hosts  []Host
		want   int
	}{
		{"a burst wants all at once", 8, []CopyLoad{of(64, 0, 8)}, []Host{loaded}, 7},
		{"and one copy more where the last one is not full", 9, []CopyLoad{of(65, 0, 8)}, []Host{loaded}, 8},
		{"no more than it needs", 8, []CopyLoad{of(17, 0, 8)}, []Host{loaded}, 2},
		{"no more than max", 4, []CopyLoad{of(64, 0, 8)}, []Host{loaded}, 3},
		{"the default max is one", 0, []CopyLoad{of(64, 0, 8)}, []Host{loaded}, 0},

		{"there is room", 8, []CopyLoad{of(8, 0, 8)}, []Host{loaded}, 0},
		{"one waits", 8, []CopyLoad{of(9, 0, 8)}, []Host{loaded}, 1},
		{"the queue is served within --fair-after", 8, []CopyLoad{of(64, 56, 8)}, []Host{loaded}, 0},
		{"all but one", 8, []CopyLoad{of(64, 55, 8)}, []Host{loaded}, 1},
		{"slow for a moment, with room", 8, []CopyLoad{of(3, 0, 8)}, []Host{loaded}, 0},
		{"more served than open", 8, []CopyLoad{of(20, 100, 8)}, []Host{loaded}, 0},

		{"those being loaded count", 8, []CopyLoad{of(64, 0, 8)}, []Host{loaded, queued, loading, starts, queued, asleep}, 3},
		{"a host counts once", 8, []CopyLoad{of(64, 0, 8)}, []Host{loaded, both}, 6},
		{"all are on their way", 5, []CopyLoad{of(40, 0, 8)}, []Host{loaded, queued, queued, queued, queued}, 0},
		{"more than that are on their way", 8, []CopyLoad{of(20, 0, 8)}, []Host{loaded, queued, queued, queued}, 0},
		{"a copy that is loaded anew is there", 2, []CopyLoad{of(64, 0, 8)}, []Host{loaded, reload}, 0},
		{"one that is stopped is not", 2, []CopyLoad{of(64, 0, 8)}, []Host{loaded, stops}, 1},
		{"what is on a lost host does not count", 2, []CopyLoad{of(64, 0, 8)}, []Host{loaded, lost}, 1},

		{"a copy with room takes what comes", 8, []CopyLoad{of(2, 0, 8), of(62, 0, 8)}, []Host{loaded, loaded}, 0},
		{"two full ones", 8, []CopyLoad{of(16, 0, 8), of(20, 0, 8)}, []Host{loaded, loaded}, 3},
		{"of two sizes, the new one like the larger", 8, []CopyLoad{of(16, 0, 4), of(24, 0, 8)}, []Host{loaded, loaded}, 4},
		{"one serves the other's share", 8, []CopyLoad{of(12, 0, 8), of(12, 8, 8)}, []Host{loaded, loaded}, 0},

		{"unknown parallelism: one at a time", 8, []CopyLoad{of(64, 0, 0)}, []Host{loaded}, 1},
		{"after the one before", 8, []CopyLoad{of(64, 0, 0)}, []Host{loaded, queued}, 0},
		{"and if that did not help", 8, []CopyLoad{of(32, 0, 0), of(32, 0, 0)}, []Host{loaded, loaded}, 1},
		{"one request", 8, []CopyLoad{of(1, 0, 0)}, []Host{loaded}, 0},

		{"the first copy is not decided here", 8, nil, []Host{free, asleep}, 0},
		{"its load neither", 8, nil, []Host{queued}, 0},
		{"the copy has just gone", 8, []CopyLoad{of(64, 0, 8)}, []Host{free}, 0},
		{"and comes again", 8, []CopyLoad{of(64, 0, 8)}, []Host{starts}, 0},
	} {
		other := Host{State: Ready, Loading: "o", Residents: []Resident{{ID: "o", State: ModelLoaded}}}
		if got := WantCopy(Snapshot{Hosts: append(tc.hosts, other)}, Model{ID: id, Max: tc.max}, tc.copies); got != tc.want {
			t.Errorf("%s: %d further copies, want %d", tc.name, got, tc.want)
		}
	}
}

// TestRebalance is the decision table of requests that are sent from one copy to others.
func TestRebalance(t *testing.T) {
	of := func(open, parallel int) CopyLoad { return CopyLoad{Open: open, Parallel: parallel} }
	for _, tc := range []struct {
		name   string
		copies []CopyLoad
		want   []int
	}{
		{"one copy", []CopyLoad{of(64, 8)}, []int{0}},
		{"a new one takes what it can", []CopyLoad{of(0, 8), of(64, 8)}, []int{0, 8}},
		{"no more than waits", []CopyLoad{of(0, 8), of(10, 8)}, []int{0, 2}},
		{"nothing waits", []CopyLoad{of(0, 8), of(8, 8)}, []int{0, 0}},
		{"no room", []CopyLoad{of(8, 8), of(64, 8)}, []int{0, 0}},
		{"the most loaded give first", []CopyLoad{of(2, 8), of(10, 8), of(12, 8)}, []int{0, 2, 4}},
		{"and alone, if that is enough", []CopyLoad{of(4, 8), of(10, 8), of(12, 8)}, []int{0, 0, 4}},
		{"two take", []CopyLoad{of(0, 4), of(2, 8), of(64, 8)}, []int{0, 0, 10}},
		{"unknown parallelism", []CopyLoad{of(0, 0), of(64, 0)}, []int{0, 0}},
		{"known of one", []CopyLoad{of(0, 0), of(64, 8)}, []int{0, 0}},
	} {
		if got := Rebalance(tc.copies); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
