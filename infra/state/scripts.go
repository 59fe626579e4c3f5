package state

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/prelude.lua
var preludeLua string

//go:embed lua/register.lua
var registerLua string

//go:embed lua/beat.lua
var beatLua string

//go:embed lua/model_put.lua
var modelPutLua string

//go:embed lua/model_drop.lua
var modelDropLua string

//go:embed lua/acquire.lua
var acquireLua string

//go:embed lua/renew.lua
var renewLua string

//go:embed lua/leave.lua
var leaveLua string

//go:embed lua/begin.lua
var beginLua string

//go:embed lua/finish.lua
var finishLua string

//go:embed lua/touch.lua
var touchLua string

//go:embed lua/snapshot.lua
var snapshotLua string

//go:embed lua/record.lua
var recordLua string

//go:embed lua/catalog_put.lua
var catalogPutLua string

//go:embed lua/wake.lua
var wakeLua string

//go:embed lua/claim.lua
var claimLua string

//go:embed lua/host_state.lua
var hostStateLua string

const shebang = "#!lua\n"

// script is one operation, whose reply is bounded. On Redis 7 and later it starts with `#!lua`, so that a server out of
// memory or without its replicas refuses it before its first effect; servers that do not know the line (miniredis, Redis
// 6) get it without.
type script struct {
	modern, plain *redis.Script
	usePlain      atomic.Bool
}

func newScript(src string) *script {
	body := preludeLua + "local function operation()\n" + strings.TrimPrefix(src, shebang) + "\nend\nreturn bounded(operation())\n"
	return &script{modern: redis.NewScript(shebang + body), plain: redis.NewScript(body)}
}

// run calls the script by its digest, sending its text only to a server that does not have it (NOSCRIPT).
func (s *script) run(ctx context.Context, c redis.Scripter, prefix string, args ...any) *redis.Cmd {
	if !s.usePlain.Load() {
		cmd := s.modern.Run(ctx, c, []string{prefix}, args...)
		if !unknownShebang(cmd.Err()) {
			return cmd
		}
		s.usePlain.Store(true)
	}
	return s.plain.Run(ctx, c, []string{prefix}, args...)
}

// unknownShebang tells a compile error at the first line from all other errors: nothing ran.
func unknownShebang(err error) bool {
	var re redis.Error
	return err != nil && errors.As(err, &re) && (strings.Contains(err.Error(), "compiling script") || strings.Contains(err.Error(), "unexpected symbol") || strings.Contains(err.Error(), "parse error"))
}

type scripts struct {
	register, beat, modelPut, modelDrop, acquire, renew, leave, begin, finish, touch, snapshot, catalogPut, wake, claim, hostState, sleep, repair, forget, pulled, record *script
}

func newScripts() scripts {
	return scripts{
		register: newScript(registerLua), beat: newScript(beatLua), modelPut: newScript(modelPutLua), modelDrop: newScript(modelDropLua),
		acquire: newScript(acquireLua), renew: newScript(renewLua), leave: newScript(leaveLua), begin: newScript(beginLua),
		finish: newScript(finishLua), touch: newScript(touchLua), snapshot: newScript(snapshotLua), catalogPut: newScript(catalogPutLua),
		wake: newScript(wakeLua), claim: newScript(claimLua), hostState: newScript(hostStateLua),
		sleep: newScript(sleepLua), repair: newScript(repairLua), forget: newScript(forgetLua), pulled: newScript(pulledLua), record: newScript(recordLua),
	}
}
