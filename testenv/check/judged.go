package check

// Invariant is a promise that a Checker holds a history to.
type Invariant struct {
	Number int
	Quiet  bool // it holds only in quiet times: nothing is wrong, nor was a short while ago
	Text   string
}

// Invariants are all of them, by number. The numbers up to 26 are those of the reliability requirements.
var Invariants = []Invariant{
	{1, false, "models of one type on a host never exceed its limit"},
	{2, false, "one model uses the NPU of a host"},
	{3, false, "nothing busy is stopped"},
	{4, false, "one load at a time on a host"},
	{6, false, "the victim is the idle model unused for longest"},
	{7, false, "a victim takes no request"},
	{8, true, "a model serves those it was loaded for"},
	{10, true, "one spawn for any number of requests"},
	{11, true, "a load that nobody wants is dropped"},
	{12, false, "a failed load clears the host and is tried once more"},
	{13, true, "every request has one outcome, in time, with a cause"},
	{14, true, "what can start starts within a second"},
	{15, true, "loads keep their order, new requests do not hold them up"},
	{17, false, "tokens rise"},
	{18, true, "the record of a dead process is gone within 2 s"},
	{19, true, "nothing is left on a machine that is turned off"},
	{20, true, "a host that is wanted while it goes to sleep is woken"},
	{21, false, "idleness counts from the end of the last request"},
	{22, false, "a request is counted once and given back once"},
	{23, false, "a request reaches an engine once, and again where that died with it"},
	{26, false, "a script that refuses changes nothing"},
	{27, false, "models on a host never exceed its memory"},
	{28, true, "a machine that runs without being wanted is turned off"},
	{29, true, "a host outside the catalogue is forgotten once it is long gone"},
	{30, false, "what Redis holds agrees with itself, and no decision's inputs change under one revision"},
	{31, true, "higher priorities are computed first, and none waits forever"},
}

// Judged counts the steps of a scenario in which a promise was looked at and could have been broken.
type Judged struct {
	Steps int // at any time
	After int // in quiet times after something had been wrong
}

// tally is a Judged under way.
type tally struct {
	Judged
	step, after int // the last ones counted, -1 none
}

// judge notes that a promise is looked at now.
func (c *Checker) judge(invariant int) {
	t := c.judged[invariant]
	if t == nil {
		t = &tally{step: -1, after: -1}
		c.judged[invariant] = t
	}
	if t.step != c.now.Step {
		t.step = c.now.Step
		t.Steps++
	}
	if c.disturbed && c.Calm() && t.after != c.now.Step {
		t.after = c.now.Step
		t.After++
	}
}

// Judged is how often each promise was looked at, by number.
func (c *Checker) Judged() map[int]Judged {
	out := map[int]Judged{}
	for n, t := range c.judged {
		out[n] = t.Judged
	}
	return out
}
