package pressure

// Step is how much a gateway gives up.
type Step int32

// The steps, each of which includes the one before.
const (
	Normal     Step = iota // nothing
	CloseConns             // connections are closed after their answer
	Shed                   // new requests are refused
)

// The shares of the limit, in per cent, at which a step is taken.
const (
	noKeepAt  = 92
	refusalAt = 95
)

// stepAt is the step for so many bytes used of a limit; 0 is no limit.
func stepAt(used, limit int64) Step {
	switch {
	case limit <= 0 || used < limit/100*noKeepAt:
		return Normal
	case used < limit/100*refusalAt:
		return CloseConns
	}
	return Shed
}
