package pressure

// Level is how much a gateway gives up.
type Level int32

// The levels, each of which includes the one before.
const (
	Normal     Level = iota // nothing
	CloseConns              // connections are closed after their answer
	Shed                    // new requests are refused
)

// The shares of the limit, in per cent, at which a level begins.
const (
	noKeepAt  = 92
	refusalAt = 95
)

// levelAt returns the level for so many bytes used of a limit; 0 is no limit.
func levelAt(used, limit int64) Level {
	switch {
	case limit <= 0 || used < limit/100*noKeepAt:
		return Normal
	case used < limit/100*refusalAt:
		return CloseConns
	}
	return Shed
}
