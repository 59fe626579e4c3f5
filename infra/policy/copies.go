package policy

// WantCopy reports whether to place a further copy of want: some copy serves, none is being loaded, there are fewer
// than want.Max, and queued, the number of requests waiting at the copy with the fewest, exceeds served, the number
// that it completes within --fair-after. So copies are added one at a time, each only if the last one did not help
// enough.
//
// It does not decide about the first copy: without any copy it returns false.
func WantCopy(s Snapshot, want Model, queued, served int) bool {
	if queued <= served {
		return false
	}
	loaded := 0
	for i := range s.Hosts {
		h := &s.Hosts[i]
		if h.State == Lost {
			continue
		}
		for j := range h.Queue {
			if h.Queue[j].Model.ID == want.ID {
				return false
			}
		}
		for j := range h.Residents {
			switch r := &h.Residents[j]; {
			case r.ID != want.ID:
			case r.State == ModelLoading:
				return false
			case r.State == ModelLoaded && h.State == Ready:
				loaded++
			}
		}
	}
	return loaded > 0 && loaded < max(1, want.Max)
}
