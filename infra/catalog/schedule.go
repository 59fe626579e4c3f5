package catalog

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // the images have no files of time zones

	"github.com/goccy/go-yaml/ast"
	"github.com/netresearch/go-cron"
)

// A Schedule is five fields as in cron: minute, hour, day of month, month, day of week. When both day fields are
// restricted, a day needs to match only one. The fields are in the time zone of the time passed in. The zero Schedule
// never fires.
type Schedule struct {
	text string
	cron cron.Schedule
}

// schedules are searched for nine years, because February 29 may be eight years away.
var schedules = cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom).
	WithMaxSearchYears(9)

func (s Schedule) String() string { return s.text }

// Next returns the first time after t at which the schedule fires, and the zero time if it never does.
func (s Schedule) Next(t time.Time) time.Time {
	if s.cron == nil {
		return time.Time{}
	}
	return s.cron.Next(t)
}

// MarshalText writes the five fields; the zero Schedule is the empty text.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// UnmarshalText is the inverse of MarshalText. It refuses a schedule that never fires, such as February 30.
func (s *Schedule) UnmarshalText(b []byte) error {
	*s = Schedule{}
	if len(b) == 0 {
		return nil
	}
	parsed, err := schedules.Parse(string(b))
	if err != nil {
		return fmt.Errorf(`schedule: %w; use five fields as in cron, such as "0 8 * * 1-5"`, err)
	}
	if parsed.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return fmt.Errorf("schedule %q never fires", clip(string(b)))
	}
	*s = Schedule{strings.Join(strings.Fields(string(b)), " "), parsed}
	return nil
}

// UnmarshalYAML reads the five fields.
func (s *Schedule) UnmarshalYAML(n ast.Node) error { return unmarshalText(n, s.UnmarshalText) }
