package httpapi

// managementRoutes are the probes, listings, management and operator routes. Those that only read make no use of a
// model and wake nothing.
func (s *Server) managementRoutes() map[string]handler {
	return map[string]handler{
		"root":         s.root,
		"live":         s.live,
		"ready":        s.ready,
		"health_plain": s.live,
		"metrics":      s.metrics,
		"health":       s.health,

		"load":           s.load,
		"unload":         s.unload,
		"unload_all":     s.unloadAll,
		"api_unload_all": s.apiUnloadAll,
		"api_unload":     s.apiUnload,
		"pin":            s.pin,

		"host_wake":   s.hostWake,
		"host_forget": s.hostForget,
		"host_sleep":  s.hostSleep,

		"models":         s.models,
		"model":          s.modelOne,
		"model_status":   s.modelStatus,
		"register":       s.register,
		"pull":           s.pull,
		"delete":         s.deleteModel,
		"options_get":    s.optionsGet,
		"options_set":    s.optionsSet,
		"options_delete": s.optionsDelete,

		"config_set":    s.configSet,
		"config_get":    s.configGet,
		"aliases":       s.aliases,
		"alias_get":     s.aliasGet,
		"alias_set":     s.aliasSet,
		"alias_set_one": s.aliasSet,
		"alias_delete":  s.aliasDelete,

		"stats":        s.stats,
		"system_info":  s.systemInfo,
		"system_stats": s.systemStats,

		"running":           s.running,
		"logs":              s.logs,
		"logs_stream":       s.logsStream,
		"logs_stream_model": s.logsStreamModel,
		"upstream":          s.upstream,
		"props":             s.inspect("/props"),
		"slots":             s.inspect("/slots"),

		"ollama_version": s.ollamaVersion,
		"ollama_tags":    s.ollamaTags,
		"ollama_ps":      s.ollamaPS,
		"ollama_show":    s.ollamaShow,
		"ollama_pull":    s.ollamaPull,
		"ollama_delete":  s.ollamaDelete,
	}
}
