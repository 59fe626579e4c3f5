package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestCost(t *testing.T) {
	for _, tc := range []struct {
		by, row, want string
		csv           bool
	}{
		{by: "host", row: `"awake_seconds":5400.5,"idle_seconds":600,"wakes":3,"failed_wakes":1,"cost":1.5,"always_on":12`,
			want: "HOST|AWAKE|IDLE|WAKES|FAILED|COST|ALWAYS ON a|1h30m0s|10m0s|3|1|1.50|12.00 total|0s|0s|0|0|1.50|0.00"},
		{by: "key", row: `"requests":2,"request_seconds":65,"input_tokens":7,"output_tokens":5,"cost":1.5`,
			want: "KEY|REQUESTS|TIME|TOKENS IN|TOKENS OUT|COST a|2|1m5s|7|5|1.50 total|0|0s|0|0|1.50"},
		{by: "model", row: `"requests":2,"request_seconds":65.25,"cost":0.123456`, csv: true,
			want: "month,model,awake_seconds,idle_seconds,wakes,failed_wakes,requests,request_seconds,input_tokens,output_tokens,cost,always_on " +
				"2026-02,a,0,0,0,0,2,65.25,0,0,0.123456,0"},
	} {
		r, asked := gateway(t, 200, `{"month":"2026-02","by":"`+tc.by+`","rows":[{"name":"a",`+tc.row+`}],"total":{"name":"total","cost":1.5}}`)
		var out bytes.Buffer
		if err := (&Cost{Remote: r, Month: "2026-02", By: tc.by, CSV: tc.csv}).Run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if want := "GET /v1/internal/costs?by=" + tc.by + "&month=2026-02 Bearer k "; (*asked)[0] != want {
			t.Errorf("asked %q, want %q", (*asked)[0], want)
		}
		var lines []string
		for line := range strings.Lines(out.String()) {
			cells := strings.Split(strings.TrimSpace(line), "  ")
			var kept []string
			for _, cell := range cells {
				if cell = strings.TrimSpace(cell); cell != "" {
					kept = append(kept, cell)
				}
			}
			lines = append(lines, strings.Join(kept, "|"))
		}
		if got := strings.Join(lines, " "); got != tc.want {
			t.Errorf("by %s:\ngot  %s\nwant %s", tc.by, got, tc.want)
		}
	}
}
