package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"reveille/gateway/ui"
	"reveille/infra/catalog"
	"reveille/infra/term"
)

// Top is `gateway top`.
type Top struct {
	Remote
}

// maxEvent bounds an event of the page's stream, in bytes.
const maxEvent = 16 << 20

// poolEvent is a pool event of the page's stream.
type poolEvent struct {
	At   int64   `json:"at"` // milliseconds on the pool's clock
	View ui.Pool `json:"view"`
}

// Run shows the pool until q, Escape or Ctrl-C. With --json it prints each view on a line.
func (c *Top) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.JSON {
		enc := json.NewEncoder(out)
		err := c.follow(ctx, func(e poolEvent) error { return enc.Encode(e.View) })
		if ctx.Err() != nil {
			return nil // a signal
		}
		return err
	}
	screen := tea.NewProgram(topScreen{gateway: c.base()}, tea.WithContext(ctx), tea.WithOutput(out))
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		for ctx.Err() == nil {
			err := c.follow(ctx, func(e poolEvent) error { screen.Send(e); return nil })
			screen.Send(err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	_, err := screen.Run()
	cancel()
	<-followed
	if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
		return nil // a signal
	}
	if err != nil {
		return fmt.Errorf("without a terminal, use --json: %w", err)
	}
	return nil
}

// follow reads the page's stream and passes on the pool's views. It returns when the stream ends, with the reason.
func (c *Top) follow(ctx context.Context, show func(poolEvent) error) error {
	answer, err := c.open(ctx, "GET", "/ui/stream", nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	lines := bufio.NewScanner(answer)
	lines.Buffer(nil, maxEvent)
	pool := false
	for lines.Scan() {
		if name, ok := bytes.CutPrefix(lines.Bytes(), []byte("event: ")); ok {
			pool = string(name) == "pool"
		}
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || !pool {
			continue
		}
		var e poolEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("the gateway sent what is no view of a pool: %w", err)
		}
		if err := show(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return errors.New("the gateway ended the stream")
}

// topScreen is what the terminal shows. Its messages are poolEvent and error.
type topScreen struct {
	gateway       string
	width, height int
	from          int // first line shown
	last          poolEvent
	err           error // of the stream; nil while it runs
}

// Init starts nothing.
func (s topScreen) Init() tea.Cmd { return nil }

// Update takes in a key, a new size or news of the pool.
func (s topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case poolEvent:
		s.last, s.err = msg, nil
	case error:
		s.err = msg
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return s, tea.Quit
		case "down", "j":
			s.from++
		case "up", "k":
			s.from--
		case "pgdown", "space":
			s.from += s.height
		case "pgup":
			s.from -= s.height
		case "home":
			s.from = 0
		}
	}
	s.from = max(0, min(s.from, len(s.lines())-s.height+1))
	return s, nil
}

// View draws the part of the lines that fits, and a line of help.
func (s topScreen) View() tea.View {
	lines := s.lines()
	lines = lines[min(s.from, len(lines)):]
	lines = append(lines[:min(len(lines), max(0, s.height-1))], "q quits, arrows scroll")
	for i, l := range lines {
		if r := []rune(l); len(r) > s.width {
			lines[i] = string(r[:s.width])
		}
	}
	v := tea.NewView(strings.Join(lines, "\n"))
	v.AltScreen = true
	return v
}

func (s topScreen) lines() []string {
	var out strings.Builder
	switch pool := s.last.View; {
	case s.err != nil && s.last.At == 0:
		return []string{term.Line(s.err.Error(), maxReason)}
	case s.last.At == 0:
		return []string{s.gateway + ": connecting"}
	case s.err != nil:
		fmt.Fprintf(&out, "%s: %s\n\n", s.gateway, term.Line(s.err.Error(), maxReason))
	case pool.Stale:
		fmt.Fprintf(&out, "%s: Redis does not answer: this is what was last known\n\n", s.gateway)
	default:
		fmt.Fprintf(&out, "%s: %s waiting\n\n", s.gateway, count(pool.Waiting, "request"))
	}
	_ = s.last.table(&out) // a Builder takes everything
	return strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
}

// table writes hosts, models and the queue.
func (e poolEvent) table(out io.Writer) error {
	w := term.Table(out)
	fmt.Fprintln(w, "HOST\tSTATE\tMEMORY\tLOADING")
	for _, h := range e.View.Hosts {
		var memory []string
		for _, d := range h.Devices {
			text := d.Name + " " + catalog.FormatSize(d.Used)
			if d.Budget > 0 {
				text += " of " + catalog.FormatSize(d.Budget)
			}
			memory = append(memory, text)
		}
		state := h.State
		if h.Boot != "" {
			state += ", " + h.Boot
		}
		if h.Since > 0 {
			state += " " + e.since(h.Since)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", h.Name, state, strings.Join(memory, ", "), h.Loading)
	}
	fmt.Fprintln(w, "\nMODEL\tTYPE\tHOST\tSTATE\tREQUESTS\tUSED\tMEMORY\tNOTE")
	for _, h := range e.View.Hosts {
		for _, t := range h.Types {
			for _, m := range t.Models {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", m.ID, t.Type, h.Name, m.State, m.Requests, e.since(m.Used), known(m.Memory, catalog.FormatSize(m.Memory)), topNote(h, t, m))
			}
		}
	}
	for i, t := range e.View.Queue {
		if i == 0 {
			fmt.Fprintln(w, "\nQUEUE\tHOST\tSTATE\tWAITING\tSINCE\tESTIMATE\tWHY")
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\t%d\t%s\t%s\t%s\n", t.Kind, t.Model, t.Host, t.State, t.Waiting, e.since(t.Since), known(t.ETA, fmt.Sprintf("%d s", t.ETA)), term.Line(t.Why, maxReason))
	}
	if e.View.More > 0 {
		fmt.Fprintf(w, "\n%d more are not shown\n", e.View.More)
	}
	return w.Flush()
}

func (e poolEvent) since(ms int64) string {
	return known(ms, time.Duration(max(0, e.At-ms)*int64(time.Millisecond)).Round(time.Second).String())
}

// topNote is what there is to say of a copy: the model that the next load of its type stops is marked as on the page.
func topNote(h ui.Host, t ui.Slots, m ui.Model) string {
	var out []string
	if m.Busy {
		out = append(out, "busy")
	}
	if m.Pinned {
		out = append(out, "pinned")
	}
	if t.Victim == m.ID {
		out = append(out, "next out")
	}
	for _, seat := range h.Seats {
		if slices.Contains(seat.By, m.ID) {
			out = append(out, "holds the NPU")
		}
	}
	return strings.Join(out, ", ")
}
