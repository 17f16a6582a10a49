// Command helm renders a chart as `helm template` does, with Helm's own loader, schema check and
// engine, for tests.
//
// Helm itself would link some hundred packages more, to talk to clusters and registries; this links
// those that render.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// Of a chart's folder and values in JSON on standard input: {path of template: text}.
func main() {
	if err := render(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(folder string) error {
	chart, err := loader.Load(folder)
	if err != nil {
		return err
	}
	own := map[string]interface{}{}
	if err := json.NewDecoder(os.Stdin).Decode(&own); err != nil {
		return err
	}
	release := chartutil.ReleaseOptions{Name: "kant", Namespace: "kant", Revision: 1, IsInstall: true}
	if err := chartutil.ProcessDependencies(chart, own); err != nil {
		return err
	}
	values, err := chartutil.ToRenderValues(chart, own, release, chartutil.DefaultCapabilities)
	if err != nil {
		return err
	}
	rendered, err := engine.Render(chart, values)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(rendered)
}
