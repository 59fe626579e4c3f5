package mmcache

import "time"

const (
	hashPerMiB  = 4 * time.Millisecond  // per MiB of media
	fetchPerMiB = 32 * time.Millisecond // per MiB of floats: a quarter of the speed of 1 Gbit/s
	maxFetch    = 10 * time.Second
)

func fetchTime(bytes int64) time.Duration { return min(time.Duration(bytes>>20)*fetchPerMiB, maxFetch) }

// lookupTime returns the timeout of a look-up. It is nine tenths of what the engine waits.
func (c *Config) lookupTime(items []item) time.Duration {
	var media uint64
	var floats int64
	for _, it := range items {
		media += it.bytes
		floats += it.layout.Bytes()
	}
	return (c.LookupWait + time.Duration(media>>20)*hashPerMiB + fetchTime(floats)) * 9 / 10
}
