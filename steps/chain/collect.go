package chain

import (
	"context"
	"log/slog"
	"time"

	"fabrique/steps/config"
	"fabrique/steps/gc"
)

// Collect removes the images that nothing needs any more, with the configuration's
// repositories and registry. Of the options it takes Keep, Grace, Protected, Delete
// and Decided.
func Collect(ctx context.Context, log *slog.Logger, c config.Config, o gc.Options) (gc.Report, error) {
	source, apps, err := remotes(c)
	if err != nil {
		return gc.Report{Tags: []gc.Tag{}}, err
	}
	o.Source, o.SourceBranch, o.Apps, o.AppsBranch = source, c.Source.Branch, apps, c.Apps.Branch
	o.Registry, o.PlainHTTP = c.Registry.Address, c.Registry.PlainHTTP
	o.Now = time.Now()
	return gc.Run(ctx, log, o)
}
