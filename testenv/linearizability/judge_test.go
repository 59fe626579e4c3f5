package linearizability

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// thinking is how long porcupine may look for an order. It needs milliseconds; a history for which this is not enough is
// one that nobody has judged.
const thinking = 60 * time.Second

// judge fails the test unless the history of a pool has an order. happened counts calls whose reply was lost and
// whose effect was not.
func judge(t testing.TB, pool string, calls []porcupine.Operation) (happened int) {
	t.Helper()
	m := model()
	began := time.Now()
	result, info := porcupine.CheckOperationsVerbose(m, calls, thinking)
	switch result {
	case porcupine.Ok:
		return effects(m, info.PartialLinearizationsOperations()[0][0])
	case porcupine.Unknown:
		t.Errorf("pool %s: undecided after %v: %d calls, %d of them without a reply; page: %s\n%s",
			pool, time.Since(began), len(calls), unheardOf(calls), save(t, pool, m, info), explain(m, info, calls))
	default:
		t.Errorf("pool %s: no order of the calls gives these responses; page: %s\n%s", pool, save(t, pool, m, info), explain(m, info, calls))
	}
	return 0
}

// effects counts the calls without a reply that changed the revision, and after which others had a reply.
func effects(m porcupine.Model, order []porcupine.Operation) (n int) {
	unheard := 0
	state := m.Init()
	revision := func() uint64 { return state.([]any)[0].(*pool).revision }
	for _, c := range order {
		before := revision()
		_, state = m.Step(state, c.Input, c.Output)
		switch {
		case !c.Output.(output).lost:
			n = unheard
		case revision() != before:
			unheard++
		}
	}
	return n
}

func unheardOf(calls []porcupine.Operation) (n int) {
	for _, c := range calls {
		if c.Output.(output).lost {
			n++
		}
	}
	return n
}

// save writes the history as a page and returns its path. It is kept, for the person who looks at the failure.
func save(t testing.TB, pool string, m porcupine.Model, info porcupine.LinearizationInfo) string {
	t.Helper()
	dir, err := os.MkdirTemp(*out, "history-")
	if err == nil {
		page := filepath.Join(dir, pool+".html")
		if err = porcupine.VisualizePath(m, info, page); err == nil {
			return page
		}
	}
	return fmt.Sprint("none, ", err)
}

// explain shows the end of the longest order that was found, the pool after it, and the calls that have no place in it.
func explain(m porcupine.Model, info porcupine.LinearizationInfo, calls []porcupine.Operation) string {
	var longest []int
	for _, order := range info.PartialLinearizations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	placed := map[int]bool{}
	state := m.Init()
	var text strings.Builder
	for i, at := range longest {
		placed[at] = true
		_, state = m.Step(state, calls[at].Input, calls[at].Output)
		if i >= len(longest)-12 {
			fmt.Fprintln(&text, " ", show(m, calls[at]))
		}
	}
	fmt.Fprintf(&text, "then the pool is\n  %s\nand what comes next is one of\n", m.DescribeState(state))
	end := endless
	for i, c := range calls {
		if !placed[i] {
			end = min(end, c.Return)
		}
	}
	for i, c := range calls {
		if !placed[i] && c.Call <= end {
			fmt.Fprintln(&text, " ", show(m, c))
		}
	}
	return text.String()
}

func show(m porcupine.Model, c porcupine.Operation) string {
	return fmt.Sprintf("client %d %v–%v %s", c.ClientId, time.Duration(c.Call), time.Duration(c.Return), m.DescribeOperation(c.Input, c.Output))
}
