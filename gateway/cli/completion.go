package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
	"github.com/willabides/kongplete"
)

// Completion is `gateway completion`.
type Completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// completions are scripts that have a shell ask the program itself; see Complete.
var completions = map[string]string{
	"bash": "complete -o default -C gateway gateway\n",
	"zsh": `#compdef gateway
_gateway() {
    local -a found=(${(f)"$(COMP_LINE="${(j: :)words[1,CURRENT]}" $words[1])"})
    (($#found)) && compadd -- $found || _files
}
if [[ $funcstack[1] = _gateway ]]; then _gateway; else compdef _gateway gateway; fi
`,
	"fish": `function __complete_gateway
    set -lx COMP_LINE (commandline -cp)
    gateway
end
complete -c gateway -a "(__complete_gateway)"
`,
}

// Run prints a script for the shell.
func (c *Completion) Run(out io.Writer) error {
	_, err := fmt.Fprint(out, completions[c.Shell])
	return err
}

// Complete prints what may follow the words in COMP_LINE and ends the program, if a shell asks for it.
func Complete(k *kong.Kong) error {
	if os.Getenv("COMP_LINE") != "" {
		kongplete.Complete(k)
	}
	return nil
}
