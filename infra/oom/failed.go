package oom

import (
	"regexp"
	"strconv"
	"strings"
)

// sizes match the size in lines that say that an allocation failed, and its unit; without one it is bytes.
var sizes = regexp.MustCompile(`(?i)(?:allocat(?:e|ing|ion of(?: size)?)|of size) (\d{1,15}(?:\.\d{1,6})?)\b(?: ?([KMG]i?B))?`)

// maxSize bounds what a log may say that an allocation had, in bytes.
const maxSize = 1 << 50

// FailedAllocation returns the bytes of the largest allocation that failed by a text that IsOutOfMemory accepts, 0 if
// it names none.
func FailedAllocation(text string) (bytes int64) {
	for line := range strings.Lines(text) {
		if !patternsRE.MatchString(line) || harmlessRE.MatchString(line) {
			continue
		}
		for _, m := range sizes.FindAllStringSubmatch(line, -1) {
			n, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				continue
			}
			switch strings.ToUpper(m[2] + " ")[0] {
			case 'K':
				n *= 1 << 10
			case 'M':
				n *= 1 << 20
			case 'G':
				n *= 1 << 30
			}
			if n <= maxSize {
				bytes = max(bytes, int64(n))
			}
		}
	}
	return bytes
}
