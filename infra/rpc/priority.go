package rpc

// A Priority orders the requests that wait for an engine.
type Priority uint8

// Priorities, highest first.
const (
	High Priority = iota
	Normal
	Low
	Background
	Priorities // their number
)

// ParsePriority reads the value of [HeaderPriority]; anything unknown is Normal.
func ParsePriority(s string) Priority {
	switch s {
	case "high":
		return High
	case "low":
		return Low
	case "background":
		return Background
	}
	return Normal
}
