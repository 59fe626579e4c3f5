package policy

import (
	"slices"
	"testing"
	"time"
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
		stops   = has(ModelDraining)
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
		{"a burst while the first copy is loaded", 8, []CopyLoad{of(64, 0, 8)}, []Host{starts}, 7},
		{"those being loaded with it count", 8, []CopyLoad{of(64, 0, 8)}, []Host{starts, queued, loading, asleep}, 5},
		{"it is enough for those that wait", 8, []CopyLoad{of(8, 0, 8)}, []Host{queued}, 0},
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

// TestSpareCopy is the decision table of the copies that go when load falls.
func TestSpareCopy(t *testing.T) {
	const id, idle = "m", 10 * time.Minute
	ago := func(d time.Duration) Resident {
		return Resident{ID: id, State: ModelLoaded, InFlight: 2, Used: epoch, Needed: epoch.Add(-d)}
	}
	with := func(change func(*Resident)) Resident {
		r := ago(time.Hour)
		change(&r)
		return r
	}
	host := func(name string, rs ...Resident) Host { return Host{Name: name, State: Ready, Residents: rs} }
	other := Resident{ID: "o", State: ModelLoaded}
	spare := ago(time.Hour)
	lost := host("g-3", spare)
	lost.State = Lost
	draining := host("g-3", spare)
	draining.State = Draining
	queued := host("g-2", spare)
	queued.Queue = []Ticket{{Model: Model{ID: "o"}}}
	pulls := host("g-2", spare)
	pulls.OtherTickets = []string{"o"}
	for _, tc := range []struct {
		name  string
		hosts []Host
		want  string
	}{
		{"the only copy stays", []Host{host("g-1", spare)}, ""},
		{"one of two goes, with its requests", []Host{host("g-1", spare), host("g-2", spare)}, "g-2"},
		{"just as long as its idle time", []Host{host("g-1", ago(idle)), host("g-2", ago(idle))}, "g-2"},
		{"one was needed a moment ago", []Host{host("g-1", ago(idle-1)), host("g-2", spare)}, ""},
		{"the last slot of ten", []Host{host("g-10", spare), host("g-2", spare), host("g-9", spare)}, "g-10"},

		{"whose machine is freed", []Host{host("g-1", spare), host("g-2", spare, other)}, "g-1"},
		{"or sooner", []Host{host("g-1", spare, other, other), host("g-2", spare, other), host("g-3", spare, other, other)}, "g-2"},
		{"a queued load needs the machine", []Host{host("g-1", spare), queued}, "g-1"},
		{"another ticket too", []Host{host("g-1", spare), pulls}, "g-1"},

		{"a pinned copy stays", []Host{host("g-1", spare), host("g-2", with(func(r *Resident) { r.Pinned = true }))}, "g-1"},
		{"one that is reserved serves first", []Host{host("g-1", spare), host("g-2", with(func(r *Resident) { r.Reserved = true }))}, "g-1"},
		{"its own time", []Host{host("g-1", ago(2*time.Minute)), host("g-2", with(func(r *Resident) { r.Idle = time.Minute }))}, ""},
		{"its own time has passed", []Host{
			host("g-1", with(func(r *Resident) { r.Idle = time.Minute; r.Needed = epoch.Add(-time.Minute) })),
			host("g-2", with(func(r *Resident) { r.Idle = time.Minute; r.Needed = epoch.Add(-time.Minute) })),
		}, "g-2"},
		{"never", []Host{
			host("g-1", with(func(r *Resident) { r.Idle = -1 })), host("g-2", with(func(r *Resident) { r.Idle = -1 })),
		}, ""},
		{"a runner that does not say", []Host{host("g-1", spare), host("g-2", Resident{ID: id, State: ModelLoaded})}, ""},

		{"a further copy is being loaded", []Host{
			host("g-1", spare), host("g-2", spare), host("g-3", with(func(r *Resident) { r.State = ModelLoading })),
		}, ""},
		{"one goes already", []Host{
			host("g-1", spare), host("g-2", spare), host("g-3", with(func(r *Resident) { r.State = ModelDraining })),
		}, ""},
		{"one finishes its requests", []Host{
			host("g-1", spare), host("g-2", spare), host("g-3", Resident{ID: "m~7", Retired: id, State: ModelLoaded, Closed: true}),
		}, ""},
		{"one makes room", []Host{host("g-1", spare), host("g-2", spare), host("g-3", with(func(r *Resident) { r.Closed = true }))}, ""},
		{"a host goes to sleep", []Host{host("g-1", spare), host("g-2", spare), draining}, ""},
		{"a lost one does not count", []Host{host("g-1", spare), lost}, ""},
		{"nor stand in the way", []Host{host("g-1", spare), host("g-2", spare), lost}, "g-2"},
	} {
		for range tc.hosts { // in any order
			tc.hosts = append(tc.hosts[1:], tc.hosts[0])
			got, ok := spareCopy(Snapshot{Hosts: tc.hosts}, id, epoch, idle)
			if ok != (tc.want != "") || got.Host != tc.want || ok && (got.Model != id || !got.Spare) {
				t.Errorf("%s: %+v, want the copy on %q", tc.name, got, tc.want)
			}
		}
	}
}
