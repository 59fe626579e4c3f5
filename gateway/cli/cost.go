package cli

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"reveille/gateway/costs"
	"reveille/infra/term"
)

// Cost is `gateway cost`.
type Cost struct {
	Remote
	Month string `help:"The month, YYYY-MM in UTC. Default: this month."`
	By    string `help:"What to list: host, model or key." enum:"host,model,key" default:"host"`
	CSV   bool   `help:"Print CSV with all columns."`
}

// Run prints what a month cost.
func (c *Cost) Run(ctx context.Context, out io.Writer) error {
	var r costs.Report
	path := "/v1/internal/costs?" + url.Values{"month": {c.Month}, "by": {c.By}}.Encode()
	if printed, err := c.show(ctx, out, "GET", path, nil, &r); printed || err != nil {
		return err
	}
	if c.CSV {
		return writeCSV(out, r)
	}
	t := term.Table(out)
	hosts := r.By == costs.ByHost
	if hosts {
		fmt.Fprintln(t, "HOST\tAWAKE\tIDLE\tWAKES\tFAILED\tCOST\tALWAYS ON")
	} else {
		fmt.Fprintln(t, strings.ToUpper(string(r.By))+"\tREQUESTS\tTIME\tTOKENS IN\tTOKENS OUT\tCOST")
	}
	for _, row := range append(r.Rows, r.Total) {
		if hosts {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%.2f\t%.2f\n",
				row.Name, duration(row.AwakeSeconds), duration(row.IdleSeconds), row.Wakes, row.FailedWakes, row.Cost, row.AlwaysOn)
		} else {
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%.2f\n",
				row.Name, row.Requests, duration(row.RequestSeconds), row.InputTokens, row.OutputTokens, row.Cost)
		}
	}
	return t.Flush()
}

func writeCSV(out io.Writer, r costs.Report) error {
	w := csv.NewWriter(out)
	_ = w.Write([]string{
		"month", string(r.By), "awake_seconds", "idle_seconds", "wakes", "failed_wakes",
		"requests", "request_seconds", "input_tokens", "output_tokens", "cost", "always_on",
	})
	for _, row := range r.Rows {
		_ = w.Write([]string{
			r.Month, row.Name, decimal(row.AwakeSeconds), decimal(row.IdleSeconds), whole(row.Wakes), whole(row.FailedWakes),
			whole(row.Requests), decimal(row.RequestSeconds), whole(row.InputTokens), whole(row.OutputTokens),
			decimal(row.Cost), decimal(row.AlwaysOn),
		})
	}
	w.Flush()
	return w.Error()
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

func duration(seconds float64) string {
	return (time.Duration(seconds) * time.Second).String()
}
