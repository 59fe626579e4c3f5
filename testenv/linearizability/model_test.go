package linearizability

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// told is a call and what it was told, one after the other unless it says otherwise.
type told struct {
	event    any
	answer   answer
	now      int64
	lost     bool
	together bool // with the call before it
}

func (c told) at(now int64) told { c.now = now; return c }
func (c told) unheard() told     { c.lost = true; return c }
func (c told) meanwhile() told   { c.together = true; return c }

func registers(fence uint64, models string) told {
	return told{event: register{Models: models}, answer: answer{verdict: "ok", fence: fence}}
}

func puts(generation uint64, model, verdict string) told {
	return told{event: put{generation, model, "loaded"}, answer: answer{verdict: verdict}}
}

func drops(generation uint64, model string) told {
	return told{event: drop{generation, model}, answer: answer{verdict: "ok"}}
}

// beats is how a revision is heard of.
func beats(generation, revision uint64) told {
	return told{event: beat{generation}, answer: answer{verdict: "ok", revision: revision}}
}

func begins(generation, ticket uint64, verdict string) told {
	return told{event: begin{generation, ticket}, answer: answer{verdict: verdict}}
}

// sees shows a ready host without tickets.
func sees(revision, generation uint64, records string) told {
	return told{event: snapshot{}, answer: answer{verdict: "ok", state: "ready", revision: revision, generation: generation, records: records}}
}

// asks places a load on a revision. position is that of a new ticket, which is queued.
func asks(gateway, model string, revision uint64, verdict string, ticket uint64, position int) told {
	c := told{
		event:  acquire{Gateway: gateway, Model: model, Operation: gateway + model, Revision: revision},
		answer: answer{verdict: verdict, ticket: ticket, position: position},
	}
	if position > 0 {
		c.answer.state = "queued"
	}
	return c
}

// called is an operator's wish for the host, which gives the duty to wake it, or 0.
func called(gateway string, token uint64) told {
	return told{event: claim{gateway, true}, answer: answer{verdict: "ok", fence: token}}
}

func keeps(token uint64, verdict string) told {
	return told{event: wake{token, "renew"}, answer: answer{verdict: verdict}}
}

// TestModel: of two ways in which a history may go on the model takes the one that can be, and refuses the other.
func TestModel(t *testing.T) {
	synced, failed := told{event: inStep{20}}, told{event: failover{}} // which leaves revision 20
	for _, tc := range []struct {
		name                 string
		before, right, wrong []told
	}{
		{"a model has one ticket", []told{registers(10, ""), beats(10, 20), asks("g1", "m1", 20, "created", 21, 1), beats(10, 30)},
			[]told{asks("g2", "m1", 30, "attached", 21, 1)},
			[]told{asks("g2", "m1", 30, "created", 31, 2)}},
		{"a placement on an old revision is refused", []told{registers(10, ""), beats(10, 20), puts(10, "m2", "ok")},
			[]told{asks("g1", "m1", 20, "stale", 0, 0)},
			[]told{asks("g1", "m1", 20, "created", 21, 1)}},
		{"one load at a time", []told{registers(10, ""), beats(10, 20), asks("g1", "m1", 20, "created", 21, 1), begins(10, 21, "ok"),
			beats(10, 30), asks("g1", "m2", 30, "created", 31, 1)},
			[]told{begins(10, 31, "busy")},
			[]told{begins(10, 31, "ok")}},
		{"a wait ends with its lease", []told{registers(5_000_000, "").at(5_000), beats(5_000_000, 5_000_000).at(5_000),
			asks("g1", "m1", 5_000_000, "created", 5_000_001, 1).at(5_000)},
			[]told{begins(5_000_000, 5_000_001, "dropped").at(20_001)},
			[]told{begins(5_000_000, 5_000_001, "dropped").at(20_000)}},
		{"never more records than slots", []told{registers(10, ""), puts(10, "m1", "ok"), puts(10, "m2", "ok")},
			[]told{drops(10, "m1"), puts(10, "m3", "ok")},
			[]told{puts(10, "m3", "ok")}},
		{"a slot may be free by a drop without a reply", []told{registers(10, ""), puts(10, "m1", "ok"), puts(10, "m2", "ok"), drops(10, "m1").unheard()},
			[]told{puts(10, "m3", "ok")},
			[]told{puts(10, "m3", "ok"), puts(10, "m4", "ok")}},
		{"one has the duty to wake", []told{called("g1", 5_000_000).at(5_000)},
			[]told{called("g2", 0).at(20_000), called("g2", 20_001_000).at(20_001)},
			[]told{called("g2", 20_000_000).at(20_000)}},
		{"a duty that ended is refused", []told{called("g1", 5), keeps(5, "ok"), registers(10, "")},
			[]told{keeps(5, "awake")},
			[]told{keeps(5, "ok")}},
		{"fences rise", []told{registers(10, "")},
			[]told{registers(11, "")},
			[]told{registers(10, "")}},
		{"fences are not behind the clock", nil,
			[]told{registers(5_000_000, "").at(5_000)},
			[]told{registers(4_999_999, "").at(5_000)}},
		{"an old fence is refused", []told{registers(10, ""), registers(11, "")},
			[]told{puts(10, "m1", "fenced")},
			[]told{puts(10, "m1", "ok")}},
		{"a call without a reply may have happened", []told{registers(10, ""), puts(10, "m1", "").unheard()},
			[]told{sees(20, 10, "m1=loaded")},
			[]told{sees(20, 10, "m2=loaded")}},
		{"or not, or later, but once", []told{registers(10, ""), puts(10, "m1", "").unheard(), sees(20, 10, "")},
			[]told{sees(30, 10, "m1=loaded"), drops(10, "m1"), sees(40, 10, "")},
			[]told{sees(30, 10, "m1=loaded"), drops(10, "m1"), sees(40, 10, "m1=loaded")}},
		{"a registration without a reply fences too", []told{registers(10, ""), registers(0, "").unheard(), puts(10, "m1", "fenced")},
			[]told{sees(20, 11, ""), registers(12, "")},
			[]told{sees(20, 11, ""), registers(11, "")}},
		{"calls that meet have either order, others their own", []told{registers(10, ""), puts(10, "m1", "ok")},
			[]told{puts(10, "m2", "ok"), sees(20, 10, "m1=loaded").meanwhile()},
			[]told{puts(10, "m2", "ok"), sees(20, 10, "m1=loaded")}},
		{"a failover loses a suffix", []told{registers(10, ""), synced, puts(10, "m1", "ok"), puts(10, "m2", "ok"), failed},
			[]told{sees(20, 10, "m1=loaded")},
			[]told{sees(20, 10, "m2=loaded")}},
		{"it loses it once", []told{registers(10, ""), synced, puts(10, "m1", "ok"), puts(10, "m2", "ok"), failed},
			[]told{sees(20, 10, "m1=loaded m2=loaded"), sees(20, 10, "m1=loaded m2=loaded")},
			[]told{sees(20, 10, "m1=loaded m2=loaded"), sees(20, 10, "m1=loaded")}},
		{"it loses nothing from before the replica was in step", []told{registers(10, ""), puts(10, "m1", "ok"), synced, puts(10, "m2", "ok"), failed},
			[]told{sees(20, 10, "m1=loaded")},
			[]told{sees(20, 10, "")}},
		{"nothing is lost without a failover", []told{registers(10, ""), synced, puts(10, "m1", "ok")},
			[]told{sees(20, 10, "m1=loaded")},
			[]told{sees(20, 10, "")}},
		{"fences rise above those that a failover lost", []told{{event: inStep{}}, called("g1", 20), failed},
			[]told{called("g2", 21), keeps(20, "lost")},
			[]told{called("g2", 20)}},
		{"a fence that a failover lost is refused", []told{registers(10, ""), synced, registers(11, ""), failed, sees(20, 10, "")},
			[]told{puts(11, "m1", "fenced"), puts(10, "m1", "ok"), registers(12, "")},
			[]told{puts(11, "m1", "ok")}},
		{"revisions rise above those that a failover lost", []told{registers(10, ""), beats(10, 20), synced, puts(10, "m1", "ok"), beats(10, 30), failed,
			sees(20, 10, ""), puts(10, "m2", "ok")},
			[]told{beats(10, 31), asks("g1", "m1", 30, "stale", 0, 0)},
			[]told{beats(10, 30)}},
		{"slots are counted again from the next registration on", []told{registers(10, "m1=loaded"), synced, drops(10, "m1"), puts(10, "m2", "ok"), failed,
			sees(20, 10, "m1=loaded"), puts(10, "m2", "ok"), puts(10, "m3", "ok")},
			[]told{registers(31, "m2=loaded m3=loaded")},
			[]told{registers(31, "m1=loaded m2=loaded m3=loaded")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for want, goesOn := range map[porcupine.CheckResult][]told{porcupine.Ok: tc.right, porcupine.Illegal: tc.wrong} {
				if got := porcupine.CheckOperationsTimeout(model(), written(append(tc.before[:len(tc.before):len(tc.before)], goesOn...)), time.Minute); got != want {
					t.Errorf("%v: %s, want %s", goesOn, got, want)
				}
			}
		})
	}
}

// written turns calls into a history.
func written(calls []told) (history []porcupine.Operation) {
	began := int64(0)
	for i, c := range calls {
		if !c.together {
			began = int64(10 * i)
		}
		op := porcupine.Operation{
			Input: input{c.event, moment{c.now, uint64(i + 1)}}, Output: output{c.answer, c.lost}, Call: began, Return: int64(10*i + 5),
		}
		if c.lost {
			op.Return = endless
		}
		history = append(history, op)
	}
	return history
}
