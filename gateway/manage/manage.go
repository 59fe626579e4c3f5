// Package manage serves the management, listing and operator routes: what is loaded and what could be, loads and unloads,
// options, names, registrations, hosts, logs. Routes that only read use no model and wake nothing.
package manage

import (
	"context"
	"time"

	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/scheduling"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/logring"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// Config configures a Service. All fields but Overlay, Register and Installed are required.
type Config struct {
	Models  *models.Directory
	Gate    *scheduling.Gate
	Store   *state.Store
	Mirror  *state.Mirror
	Usage   *state.UsageReporter
	Catalog func() *catalog.Catalog
	Keys    *keys.Set

	// Overlay applies the models registered at run time to the catalogue again; nil: nothing can be registered.
	Overlay func(context.Context) error
	// Register lists where the weights of models that clients register may be stored; empty: nowhere.
	Register catalog.RegisterList

	// Installed reports whether an engine's program is on this machine; nil: it is looked for in PATH.
	Installed func(*recipe.Recipe) bool

	Version   string
	Keepalive time.Duration // between messages of a streamed pull
	Draining  func() bool
	Ring      *logring.Ring   // this gateway's own log
	Life      context.Context // ends when the server shuts down, and streams of logs with it
}

// Service serves the routes. Make it with New.
type Service struct {
	cfg     Config
	dir     *models.Directory
	cpu     cpuMeter
	started time.Time
}

// New makes a service.
func New(cfg Config) *Service {
	if cfg.Installed == nil {
		cfg.Installed = inPath
	}
	return &Service{cfg: cfg, dir: cfg.Models, started: time.Now()}
}

// Handler serves one route. An error is answered in the dialect of the path.
type Handler func(*web.Request) error

// Handlers returns the handlers by the names of their routes.
func (s *Service) Handlers() map[string]Handler {
	return map[string]Handler{
		"health":                   s.health,
		"load":                     s.load,
		"unload":                   s.unload,
		"unload_all":               s.unloadAll,
		"api_unload_all":           s.apiUnloadAll,
		"api_unload":               s.apiUnload,
		"pin":                      s.pin,
		"host_wake":                s.hostWake,
		"host_forget":              s.hostForget,
		"host_sleep":               s.hostSleep,
		"conversations":            s.conversations,
		"conversations_forget":     s.conversationsForget,
		"conversations_forget_all": s.conversationsForget,
		"models":                   s.models,
		"model":                    s.modelOne,
		"model_status":             s.modelStatus,
		"register":                 s.register,
		"check_updates":            s.checkUpdates,
		"pull":                     s.pull,
		"delete":                   s.deleteModel,
		"options_get":              s.optionsGet,
		"options_set":              s.optionsSet,
		"options_delete":           s.optionsDelete,
		"config_set":               s.configSet,
		"config_get":               s.configGet,
		"keys_list":                s.keysList,
		"keys_add":                 s.keysAdd,
		"keys_revoke":              s.keysRevoke,
		"aliases":                  s.aliases,
		"alias_get":                s.aliasGet,
		"alias_set":                s.aliasSet,
		"alias_set_one":            s.aliasSet,
		"alias_delete":             s.aliasDelete,
		"stats":                    s.stats,
		"system_info":              s.systemInfo,
		"system_stats":             s.systemStats,
		"running":                  s.running,
		"logs":                     s.logs,
		"logs_stream":              s.logsStream,
		"logs_stream_model":        s.logsStreamModel,
		"ollama_version":           s.ollamaVersion,
		"ollama_tags":              s.ollamaTags,
		"ollama_ps":                s.ollamaPS,
		"ollama_show":              s.ollamaShow,
		"ollama_pull":              s.ollamaPull,
		"ollama_delete":            s.ollamaDelete,
		"ollama_create":            s.ollamaCreate,
		"ollama_copy":              s.ollamaCopy,
	}
}

// named returns the model that a management call's body names.
func (s *Service) named(r *web.Request, values []jsonscan.Value) (*catalog.Model, error) {
	v := r.Match.Route.ModelName(values)
	if v.Empty() {
		return nil, models.NoName()
	}
	return s.dir.Named(&r.Key, v.String())
}
