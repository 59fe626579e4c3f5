package pressure

// Level is how much a gateway gives up.
type Level int32

// The levels. Each includes the one before.
const (
	Normal     Level = iota // nothing
	CloseConns              // connections are closed after their response
	Shed                    // new requests are refused
)

// The shares of the limit, in per cent, at which a level starts.
const (
	closeConnsAt = 92
	shedAt       = 95
)

// levelAt returns the level when used bytes of a limit are in use; a limit of 0 means none.
func levelAt(used, limit int64) Level {
	switch {
	case limit <= 0 || used < limit/100*closeConnsAt:
		return Normal
	case used < limit/100*shedAt:
		return CloseConns
	}
	return Shed
}
