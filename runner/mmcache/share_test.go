package mmcache

import "testing"

func TestRequestShares(t *testing.T) {
	a := &Attachment{}
	check := func(what string, end func() (int64, int64, bool), hits, misses int64, exact bool) {
		t.Helper()
		if h, m, e := end(); h != hits || m != misses || e != exact {
			t.Errorf("%s: %d %d %v", what, h, m, e)
		}
	}
	one := a.Request()
	a.hits.Add(2)
	a.misses.Add(1)
	check("alone", one, 2, 1, true)
	first, second := a.Request(), a.Request()
	a.hits.Add(1)
	check("overlapped by a later one", first, 1, 0, false)
	third := a.Request()
	check("began beside another", second, 1, 0, false)
	check("began while another was open", third, 0, 0, false)
	check("alone again", a.Request(), 0, 0, true)
}
