from django.urls import path

from metrics import overview, views

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("ops/", views.operations, name="operations"),
    path("ops/charts/<slug:name>.json", views.chart, name="chart"),
    path("ops/nodes/", views.nodes, name="nodes"),
    path("ops/nodes/<slug:cluster>/<str:name>/", views.node, name="node"),
]
