"use strict";

// A session cookie needs the CSRF token of the form cookie; a bearer token does not.
const cookie = (name) =>
  document.cookie.split("; ").find((part) => part.startsWith(`${name}=`))?.slice(name.length + 1);

SwaggerUIBundle({
  url: document.getElementById("api").dataset.schema,
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null,
  persistAuthorization: false,
  defaultModelsExpandDepth: 0,
  requestInterceptor: (request) => {
    const token = cookie("csrftoken");
    if (token) request.headers["X-CSRFToken"] = token;
    return request;
  },
});
